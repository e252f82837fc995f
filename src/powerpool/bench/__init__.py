"""``powerpool bench``: how fast, how much memory, against whom. A time counts only after the answers agreed."""
