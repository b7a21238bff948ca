"""The adapter to vLLM 0.32: the only package that knows its inner seams. Importing it sets vLLM's switches before vLLM reads them."""

import os

# In-process engine, classic runner (the newer one needs a Triton that PyPI does not have for CPUs), no telemetry, no look-up of our address.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # its kernels are compiled at run time; our sampler replaces it anyway
