"""Parts for development and demos: embedded broker, local Airflow, samples, fail points."""
