"""The adapter to vLLM 0.32: the only package that knows its inner seams. Importing it sets vLLM's switches before vLLM reads them."""

import logging
import os
import warnings

# In-process engine, classic runner (the newer one needs a Triton that PyPI does not have for CPUs), no telemetry, no address look-up.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # its records go through our handlers
os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")  # its kernels are compiled at run time; our sampler replaces it anyway

if not logging.getLogger().isEnabledFor(logging.DEBUG):
    logging.getLogger("vllm").setLevel(logging.ERROR)  # a dozen start-up warnings about features that this engine does not use

# Deprecations among vLLM's own dependencies say nothing to a user of this gateway.
warnings.filterwarnings("ignore", module=r"(vllm|torch|triton|transformers)(\.|$)")
