"""Recognizers that are not Whisper: whatever ``mlx_audio.stt`` has, behind the session that Whisper has too."""
