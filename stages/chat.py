"""From a row to token ids: the one way in which every stage writes a conversation and its reply."""

from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from conf.errors import UserError
from conf.schema import ModelConfig
from stages.contract import ModelRef
from stages.rows import Row


def prompt_ids(tokenizer: PreTrainedTokenizerBase, config: ModelConfig, row: Row) -> list[int]:
    """Token ids of everything before the reply, up to and with the generation prompt.

    Raises:
        UserError: The model has no chat template, or it refuses the conversation.
    """
    ids = render(tokenizer, config, row.conversation, add_generation_prompt=True, return_dict=False)
    return [int(token_id) for token_id in ids]


def prompt_string(tokenizer: PreTrainedTokenizerBase, config: ModelConfig, row: Row) -> str:
    """The same as text; tokenise it with `add_special_tokens=False`, the template has written them already.

    Raises:
        UserError: The model has no chat template, or it refuses the conversation.
    """
    return str(render(tokenizer, config, row.conversation, add_generation_prompt=True, tokenize=False))


def reply_ids(tokenizer: PreTrainedTokenizerBase, ref: ModelRef, reply: str) -> list[int]:
    """Token ids of a reply and the token that ends it (`load_tokenizer` made that the tokenizer's end token)."""
    return [*tokenizer(reply, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def render(
    tokenizer: PreTrainedTokenizerBase, config: ModelConfig, conversation: list[dict[str, str]], **options: Any
) -> Any:
    """A conversation in the model's chat format; `options` go to `apply_chat_template`.

    Raises:
        UserError: The model has no chat template, or it refuses the conversation.
    """
    if tokenizer.chat_template is None:
        raise UserError(
            f"model.chat_template: {config.id} has no chat template of its own; set one, as Jinja text or a file"
        )
    try:
        return tokenizer.apply_chat_template(conversation, **{**config.chat_template_kwargs, **options})
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"model.chat_template: the template of {config.id} is not valid Jinja, line {error.lineno}: {error.message}"
        ) from error
    except jinja2.TemplateError as error:
        raise UserError(f"model.chat_template: the template of {config.id} refuses a conversation: {error}") from error
