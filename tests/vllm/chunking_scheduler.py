# SPDX-License-Identifier: Apache-2.0
"""A scheduler of vLLM's CPU engine (its option ``scheduler_cls``) that cuts prompts of MLA models and finds them again.

On a CPU without AMX vLLM turns chunked prefill and prefix caching off for these models, whatever is chosen, as its own
backend there has neither. Its scheduler, which is made afterwards, turns them on again.
"""

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core.sched import scheduler

MOST_TOKENS = 64
"""Of a step: prompts of more take several, each beside decodes of the others."""


class Scheduler(scheduler.Scheduler):
    def __init__(self, vllm_config: VllmConfig, *rest: Any, **options: Any) -> None:
        vllm_config.scheduler_config.enable_chunked_prefill = True
        vllm_config.scheduler_config.max_num_scheduled_tokens = MOST_TOKENS
        vllm_config.cache_config.enable_prefix_caching = True
        super().__init__(vllm_config, *rest, **options)
