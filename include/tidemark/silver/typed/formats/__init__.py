"""The formats of keys and values: types and readers of JSON, Avro and Protobuf.

A module named after a format has the types of its columns; `spark_*` and `protobuf_reader` read it.
"""
