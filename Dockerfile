# The gateway on a CUDA host: docker run --gpus all -p 8998:8998 -e HF_TOKEN duplex-gateway
FROM nvidia/cuda:13.0.1-base-ubuntu24.04
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev curl \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home gateway
WORKDIR /home/gateway/app
RUN chown gateway:gateway . && python3 -m venv .venv && chown -R gateway:gateway .venv
USER gateway
COPY --chown=gateway:gateway pyproject.toml README.md ./
COPY --chown=gateway:gateway gateway gateway
COPY --chown=gateway:gateway protocols protocols
COPY --chown=gateway:gateway static static
RUN .venv/bin/python -m pip install --no-cache-dir -e '.[cuda]' && .venv/bin/python -m pip install --no-cache-dir --no-deps silero-vad==6.2.3
ENV GATEWAY_HOST=0.0.0.0 HF_HOME=/home/gateway/.cache/huggingface
VOLUME /home/gateway/.cache
EXPOSE 8998
HEALTHCHECK --interval=10s --timeout=3s --start-period=10m CMD curl -fsS http://localhost:8998/health || exit 1
STOPSIGNAL SIGTERM
ENTRYPOINT [".venv/bin/python", "-m", "gateway"]
