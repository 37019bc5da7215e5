# One image for Airflow and Spark: the same Python, packages and jars on both sides of a job.
FROM python:3.11.14-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
    && rm -rf /var/lib/apt/lists/*

# The volumes of docker-compose.yaml take the owner of these folders.
RUN useradd --create-home --uid 10001 tidemark \
    && mkdir /var/lib/tidemark /var/lib/airflow /opt/tidemark \
    && chown tidemark: /var/lib/tidemark /var/lib/airflow /opt/tidemark

WORKDIR /opt/tidemark
ENV PYTHONUNBUFFERED=1 \
    GX_ANALYTICS_ENABLED=False \
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False

# Files that change rarely come first, so a rebuild repeats little.
COPY requirements.txt requirements-docker.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt -r requirements-docker.txt

USER tidemark
COPY --chown=tidemark include/jvm include/jvm
RUN python include/jvm/fetch.py && rm -rf ~/.ivy2

COPY --chown=tidemark pyproject.toml LICENSE ./
COPY --chown=tidemark include include
COPY --chown=tidemark jobs jobs
COPY --chown=tidemark dags dags
USER root
RUN pip install --no-cache-dir --no-deps --editable .

USER tidemark
CMD ["tidemark", "--help"]
