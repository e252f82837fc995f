"""``powerpool selfcheck``: are the numbers right on this machine? What a bug report should contain."""
