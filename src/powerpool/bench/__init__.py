"""``powerpool bench``: time and memory against competitors. Answers are compared before anything is timed."""
