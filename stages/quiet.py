"""One place that silences what the model libraries print by themselves: bars for loading weights, and advice.

Ratchet reports long work itself. Only the libraries' own switches are used, and one filter: nothing is redirected or
patched.
"""

import logging
import warnings

from huggingface_hub.utils.tqdm import disable_progress_bars
from transformers.utils import logging as transformers_logging


def quiet() -> None:
    """Turn off the libraries' progress bars and everything below an error in their logs."""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it recommends kernels that we do not use
    disable_progress_bars("transformers")
    # peft 0.21 and TRL 1.16 ask transformers 5.24 for a property by its old name.
    warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
