"""The configurations of the tiny models, and what the weights of their norms are near to."""

from .adapters import ADAPTERS
from . import delta, latent, mixtures, older, state_space, usual, windows
from .embeddings import EMBEDDINGS
from .heads import HEADS
from .pictures import PICTURES, VIDEOS
from .rankings import RANKINGS
from .speech import SPEECH
from .sounds import PIECE, SOUNDS

CASES = {
    **usual.CASES,
    **older.CASES,
    **windows.CASES,
    **mixtures.CASES,
    **latent.CASES,
    **delta.CASES,
    **state_space.CASES,
}
