"""One third-party library or one outside system each; adapters never import each other."""
