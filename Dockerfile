# Two images: `service` (API, reconciler, migrations; no tensor library) and `worker`.
#
#   docker build --target service --tag fedq-service .
#   docker build --target worker --tag fedq-worker .
#
# With --build-arg COMMIT=$(git rev-parse HEAD) the provenance of experiments names the commit.
#
# A worker that needs no GPU is several gigabytes smaller with the CPU builds of PyTorch:
# name their package index by --build-arg PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu

FROM python:3.11-slim-bookworm AS python
ENV PATH=/opt/fedq/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

FROM python AS service-dependencies
WORKDIR /build
RUN python -m venv /opt/fedq
COPY pyproject.toml constraints.txt deploy/requirements.py ./
COPY deploy/service deploy/service
RUN python requirements.py --extra service --extra s3 > service.txt \
    && pip install --requirement service.txt --constraint constraints.txt

FROM service-dependencies AS worker-dependencies
ARG PIP_EXTRA_INDEX_URL=""
RUN python requirements.py --extra worker --extra s3 > worker.txt \
    && pip install --requirement worker.txt --constraint constraints.txt

FROM python AS package
WORKDIR /build
COPY LICENSE pyproject.toml README.md ./
COPY api api
COPY fedcore fedcore
COPY fedq fedq
COPY migrations migrations
COPY workers workers
COPY deploy/service deploy/service
RUN pip wheel --no-deps --wheel-dir /dist . ./deploy/service

FROM service-dependencies AS service-installed
COPY --from=package /dist /dist
RUN pip install --no-deps /dist/*.whl

FROM worker-dependencies AS worker-installed
COPY --from=package /dist /dist
RUN pip install --no-deps /dist/*.whl

FROM python AS runtime
# Confines users' code bundles, where the container may create user namespaces. Debian keeps one version.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends bubblewrap \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --create-home fedq \
    && install --directory --owner fedq /var/lib/fedq /var/lib/fedq/storage /var/lib/fedq/data /var/lib/fedq/uploads
ARG COMMIT=""
ENV FEDQ_COMMIT=$COMMIT \
    FEDQ_HOME=/var/lib/fedq \
    FEDQ_STORAGE_URL=/var/lib/fedq/storage \
    FEDQ_DATA_DIR=/var/lib/fedq/data \
    MPLCONFIGDIR=/tmp/matplotlib
WORKDIR /var/lib/fedq
USER 10001

FROM runtime AS worker
COPY --from=worker-installed /opt/fedq /opt/fedq
CMD ["python", "-m", "workers.worker"]

FROM runtime AS service
COPY --from=service-installed /opt/fedq /opt/fedq
EXPOSE 8642
CMD ["uvicorn", "--factory", "api.app:create_app", "--http", "h11", "--h11-max-incomplete-event-size", "65536", "--host", "0.0.0.0", "--port", "8642"]
