"""Delta tables: the control table, data tables and their files."""
