"""``powerpool selfcheck``: whether the numbers are right on this machine."""
