"""Requests to measure with: texts of wanted lengths, no two alike, so that no result cache answers one by accident.

A text begins with words that spell its number, so neither a cache of whole answers nor one of common beginnings has
seen it; what follows is one of a few fillers made beforehand, so that a text costs about a microsecond. The lengths
are the same in each run: an even mix from the shortest to the longest, in one fixed order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import NamedTuple, Protocol

_TEXT = """
the and was for with that his from her she you had were but this are not they one which have him first all also
their has who out been when after there into new two its time would what about said over then other more can
like back them only some could where just made than now years most world may down well three year while will
later city under did such being used state part know your many both these don known off way until how even get
head team born film since still long work south any high again day see right man eyes house took life north same
each name much place four group found won area here going away left home music best make hand never last john
very album take end good too game began old want those side held own early use west face think march came small
town line based along air club went our few east show come men five set next room party age got let love every
look song water black night great women large river named band white once top built open king moved local times
book why door need order final road due major third knew asked say main son felt power law voice play near park
saw point front help art late hands games award young put told often ever six red led days light find tell among
half form gave lost full must live given run woman cup might land court short round seen class story sure using
car close force free field big level give non feel does title thing feet far hard human hall role heart royal
act case radio least total keep wife per mind works soon taken able union upon done lead rock dark board hair
arms site girl real sound words san less wrote past blue india stop track today call heard low miles win yet
green maybe match mouth video leave above space move post lake seven tried ten start chief sea rest hit floor
event doing care star week turn news sent ran term yes gold areas stage fact says stood money word songs child
met tour teams deep kind bed added table route idea style books eight press mean wall study type brown talk food
debut seat arts else lot range hours arm sold china list media smile coach whole boy grand cross alone lower
wide hold gone ship below base bad kept bank mark plan sat hill civil model size thus data fight stone hear
means self lips lived bit hot spent fine jack fall stay true whose earth cut bay bill coast onto parts phone try
mid girls date fell shows deal mine owned older via heavy makes ended staff skin okay medal sun cover job chest
meet novel trade rose guy goal unit weeks takes roman key cold films dance clear nine van sense speed hour whom
shook movie prior read view units ask ready lady month lines navy meant runs glass test stand eye chair
"""
WORDS = tuple(_TEXT.split())
"""512 words that are one token each, for a BERT and for the byte-pair vocabularies of language models."""

NUMBERED_WORDS = 4
"""Words that spell a text's number: 2^36 texts differ. A text of one word is the number itself, in digits."""
MIX = 256
"""Lengths in the fixed mix."""

ROUTES = {
    "embeddings": "/v1/embeddings",
    "classify": "/v1/classify",
    "rerank": "/v1/rerank",
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
}
"""Paths by the name that `--route` takes."""
GENERATING = frozenset({"completions", "chat"})
"""Routes whose answers are generated, so that they can be streamed and are counted in tokens."""


class Shape(NamedTuple):
    """What a request looks like.

    route: a key of `ROUTES`. model: None leaves it to the server. tokens: shortest and longest text, in words, of about
    a token each. inputs: texts of one request; documents where it reranks. max_tokens: of a generated answer.
    """

    route: str = "embeddings"
    model: str | None = None
    tokens: tuple[int, int] = (16, 16)
    inputs: int = 1
    stream: bool = False
    max_tokens: int = 32

    @property
    def path(self) -> str:
        """Where it is posted."""
        return ROUTES[self.route]


class Source(Protocol):
    """Where the bodies of a load come from."""

    def make(self) -> bytes:
        """The next one."""


class Bodies:
    """Bodies of that shape, each asked for once. `first`: the number of the first text; another run takes another."""

    def __init__(self, shape: Shape, first: int) -> None:
        self._shape = shape
        self._number = first
        self._fillers = _fillers(*shape.tokens)
        self._made = 0
        self._make: Callable[[], bytes] = {
            "embeddings": self._inputs,
            "classify": self._inputs,
            "rerank": self._documents,
            "completions": self._prompt,
            "chat": self._messages,
        }[shape.route]
        model = b"" if shape.model is None else b'"model":%s,' % json.dumps(shape.model).encode()
        self._head = b"{" + model
        self._tail = _sampling(shape)

    def make(self) -> bytes:
        """The next body."""
        return self._make()

    def _inputs(self) -> bytes:
        if self._shape.inputs == 1:
            return b'%s"input":"%s"}' % (self._head, self._text())
        return b'%s"input":[%s]}' % (self._head, self._texts())

    def _documents(self) -> bytes:
        return b'%s"query":"%s","documents":[%s]}' % (self._head, self._text(), self._texts())

    def _prompt(self) -> bytes:
        return b'%s"prompt":"%s",%s}' % (self._head, self._text(), self._tail)

    def _messages(self) -> bytes:
        return b'%s"messages":[{"role":"user","content":"%s"}],%s}' % (self._head, self._text(), self._tail)

    def _texts(self) -> bytes:
        return b",".join([b'"%s"' % self._text() for _ in range(self._shape.inputs)])

    def _text(self) -> bytes:
        number, words, filler = self._number, [], self._fillers[self._made % MIX]
        self._number += 1
        self._made += 1
        if filler.numbered == 1:
            return b"%d" % number
        for _ in range(filler.numbered):
            number, digit = divmod(number, len(WORDS))
            words.append(WORDS[digit])
        return " ".join(words).encode() + filler.rest


class _Filler(NamedTuple):
    """How many words of a text spell its number, and the words after them."""

    numbered: int
    rest: bytes


def _fillers(shortest: int, longest: int) -> list[_Filler]:
    chance = random.Random(512)
    lengths = [shortest + round((longest - shortest) * index / (MIX - 1)) for index in range(MIX)]
    chance.shuffle(lengths)
    return [_filler(length, chance) for length in lengths]


def _filler(length: int, chance: random.Random) -> _Filler:
    numbered = min(length, NUMBERED_WORDS)
    rest = chance.choices(WORDS, k=length - numbered)
    return _Filler(numbered, "".join(f" {word}" for word in rest).encode())


def _sampling(shape: Shape) -> bytes:
    asked: dict[str, object] = {"max_tokens": shape.max_tokens, "temperature": 0}
    if shape.stream:
        asked |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(asked)[1:-1].encode()
