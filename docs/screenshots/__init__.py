"""Pictures of the console, made by `make screenshots` from the data of `make demo`."""
