"""SQL over the tables of a home: their names, the published views, and read-only sessions."""
