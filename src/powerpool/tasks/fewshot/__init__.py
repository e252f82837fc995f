"""Few-shot learning: SoSN, Relation Net, Prototypical Net and nearest class means, by episodes."""
