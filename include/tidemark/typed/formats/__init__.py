"""The formats of keys and values: types and readers of JSON, Avro and Protobuf."""
