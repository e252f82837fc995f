"""Model cards: a README.md beside the weights that says what the model is and how it is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from powerpool.files import write_text

FILE = "README.md"
STUB = "This model card has been automatically generated."
"""In cards that transformers writes."""
SHOWN = 20
"""Number of labels that a card lists."""
CARD = """\
---
library_name: transformers
pipeline_tag: image-classification
tags:
- powerpool
- second-order-pooling
---

# {title}

An image classifier for {count} classes: {backbone} with {pool} of the Python package powerpool.

```json
{settings}
```

## Use

It needs `pip install 'powerpool[vision]'`. `import powerpool.integrations.hub` registers its classes with transformers.

```python
import powerpool.integrations.hub
from transformers import pipeline

classifier = pipeline("image-classification", model="path/to/this/folder")
print(classifier("photo.jpg"))
```

## Labels

{labels}
"""
RESULTS = "\n## Results\n\n"


def write_card(folder: str | Path, config: Any, metrics: Mapping[str, float]) -> None:
    """Write the card of a folder, unless a user changed it; without new metrics it keeps those that it has."""
    file = Path(folder, FILE)
    text = file.read_text("utf-8", "replace") if file.exists() else STUB
    own, _, results = text.partition(RESULTS)
    is_own = own == model_card(config, {}) and all(line.startswith("|") for line in results.splitlines())
    if STUB in text or (is_own and metrics):
        write_text(file, model_card(config, metrics))


def model_card(config: Any, metrics: Mapping[str, float]) -> str:
    """Return the text of a card for a :class:`powerpool.integrations.hub.PowerPoolConfig`."""
    nested = getattr(config.network_config, "model_type", None)
    backbone = str(nested if config.site is not None or config.backbone == "hf" else config.backbone)
    pool = "its own pooling" if config.pool["class"] == "head" else config.pool["class"]
    names = [_as_code(config.id2label[number]) for number in range(config.num_labels)]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    text = CARD.format(
        title=f"{backbone} with {pool}",
        count=len(names),
        backbone=_as_code(backbone),
        pool=pool if pool == "its own pooling" else _as_code(pool),
        settings=json.dumps(config.pool, indent=1),
        labels=", ".join(names[:SHOWN]) + rest,
    )
    if metrics:
        rows = "".join(f"| {_as_code(name)} | {value:g} |\n" for name, value in metrics.items())
        text += f"{RESULTS}| Metric | Value |\n|:-------|------:|\n{rows}"
    return text


def _as_code(text: str) -> str:
    """Return a text as code in Markdown, so that nothing in a name is a link or a tag."""
    return "`" + " ".join(text.replace("`", "'").replace("|", "/").split()) + "`"
