"""Media: pictures and sounds, what messages and errors call them, and how their sources are read."""

from hotshoe.media._medium import AUDIO, IMAGE, MEDIA, Medium
from hotshoe.media._messages import Given, flattened, take_media, with_texts
from hotshoe.media._source import read_source

__all__ = ["AUDIO", "IMAGE", "MEDIA", "Given", "Medium", "flattened", "read_source", "take_media", "with_texts"]
