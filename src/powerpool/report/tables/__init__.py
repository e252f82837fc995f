"""Records of runs as tables: each beside the paper's figure and the baseline, losses in words.

There are three kinds of records, each in a module of its own: values of folds, right pictures of a test split, right
queries of test episodes. What they have in common is in :mod:`base`.
"""

from powerpool.report.tables.answers import accuracies, right_by_episode, right_pictures, where
from powerpool.report.tables.base import Comparison, Group, Kind, Row, chosen
from powerpool.report.tables.findings import order_findings
from powerpool.report.tables.formats import MISSING, signed
from powerpool.report.tables.grouping import KINDS, by_pipeline, group
from powerpool.report.tables.words import introduction, losses, table

__all__ = [
    "KINDS",
    "MISSING",
    "Comparison",
    "Group",
    "Kind",
    "Row",
    "accuracies",
    "by_pipeline",
    "chosen",
    "group",
    "introduction",
    "losses",
    "order_findings",
    "right_by_episode",
    "right_pictures",
    "signed",
    "table",
    "where",
]
