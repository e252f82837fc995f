"""Graph classification: GIN0 with one of many readouts, trained and tested by fold."""
