"""What a chunk is told of the one before it. Pure."""

from __future__ import annotations

from dataclasses import replace

from engine.protocol import ChunkDone, ChunkRequest

TRUSTED_TEMPERATURE = 0.5
"""Text that was sampled at more is no context: it may have gone wrong, and would go on (Whisper's ``transcribe.py``,
``condition_on_previous_text``)."""


def with_context(request: ChunkRequest, before: ChunkDone) -> ChunkRequest:
    """The request with the job's own prompt, and behind it the text of the chunk before.

    Of a prompt that is too long for a model its end counts, which is the text.
    """
    if before.temperature > TRUSTED_TEMPERATURE:
        return request
    parts = (request.options.prompt or "", before.text)
    prompt = " ".join(part.strip() for part in parts if part.strip())
    return replace(request, options=replace(request.options, prompt=prompt or None))
