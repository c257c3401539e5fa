# One image for node, aggregator and init:
#   docker build --build-arg BASE_DIGEST=sha256:... -t gpu-hypervisor .
#   node         run --kubernetes
#   aggregator   aggregator --listen ...
#   init         preload install /run/tensor-fusion/lib
# The base is pinned by digest, so that a build says what it is made of: take the digest of the day from your registry.
ARG BASE=debian:bookworm-slim
ARG BASE_DIGEST
FROM ${BASE}@${BASE_DIGEST} AS build
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    python3 python3-venv python3-dev gcc libc6-dev ca-certificates
COPY . /source
RUN /source/packaging/install-tree /tree /usr/bin/python3
RUN /source/packaging/sbom /tree /tree/usr/share/doc/gpu-hypervisor/sbom.cdx.json

FROM ${BASE}@${BASE_DIGEST}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="gpu-hypervisor" \
      org.opencontainers.image.description="Shares GPUs on a node: each workload gets the TFLOPS and the VRAM that it was promised" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 65532 hypervisor \
    && useradd --system --uid 65532 --gid 65532 --home-dir /var/lib/hypervisor --shell /usr/sbin/nologin hypervisor \
    && install -d -o hypervisor -g hypervisor /var/lib/hypervisor /run/hypervisor /run/tensor-fusion
COPY --from=build /tree /
ENV PYTHONDONTWRITEBYTECODE=1 \
    XDG_RUNTIME_DIR=/run \
    XDG_STATE_HOME=/var/lib
# The aggregator needs no more. The node's DaemonSet runs as root, for the reasons that its manifest gives.
USER 65532:65532
EXPOSE 8001 8002
# The node's port, else the aggregator's.
HEALTHCHECK --interval=20s --timeout=4s --start-period=30s --retries=5 \
    CMD ["/bin/sh", "-c", "for port in 8001 8002; do /usr/lib/gpu-hypervisor/bin/python3 -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:$port/healthz', timeout=1.5)\" 2>/dev/null && exit; done; exit 1"]
ENTRYPOINT ["/usr/bin/hypervisor"]
CMD ["run"]
