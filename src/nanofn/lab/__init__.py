"""The policy lab: explore the real core exhaustively at small scopes, check policies, replay counterexamples."""
