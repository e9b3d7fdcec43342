"""The names of what a training stage reports: one row per optimiser step, the same names in MLflow and in files.

Every training stage: `step, epoch, time, loss, learning_rate, grad_norm`. `preference` adds `margin, accuracy`;
`reinforce` adds `reward, reward_std, kl, completion_len, truncated, all_equal, failed_scores`, `reward_<name>` for
every reward and `failed_<name>` for every reward with `on_error: score`, all of the batch that is trained on;
`resampled`, how many groups without variance were replaced before; and `generated_tokens`, everything that was sampled
for the step; with vLLM `sampling_divergence`, how far its log-probabilities are from those of the model in training.
`time` is seconds since the stage began to train; `epoch` counts passes over the training rows.
"""

COMMON = {"loss": "loss", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
"""TRL's names of what every training stage logs, and ours."""

PREFERENCE = {"rewards/margins": "margin", "rewards/accuracies": "accuracy"}
"""TRL's names of what preference optimisation logs besides, and ours."""
