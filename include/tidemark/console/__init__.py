"""The console: read-only web pages about topics, pipelines, plans and records.

`server.build_app` returns the web application. Airflow mounts it as a plugin, and
`tidemark console` serves it on this machine. No route changes any state.
"""
