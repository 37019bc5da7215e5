"""Status, verification, certificate and the owner's page."""
