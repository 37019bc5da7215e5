"""Status, verification, certificate and the owner's report."""
