"""YAML files that ship with the package: the settings behind every published number, and the figures of the paper."""
