"""Scripted executions: ``.run`` files, and the same from Python.

A ``.run`` file is a list of blocks: commands, a line ``----``, and what happened. ``#`` begins a
comment. The first block describes the system (``system``, then the lines of ``scripted_process``);
the others contain choices, one in each line, as ``choices`` writes them:

    system
    P1: A B
    P2: C
    messages: B>C
    ----
    2 processes, 2 channels, 1 message

    P1 does A
    P1 initiates P1-1
    deliver P1->P2
    ----
    ...

``network: reordering`` in the first block lets messages overtake each other, by the rules of Lai
and Yang if ``rules: chandy-lamport`` does not say otherwise; ``C->P2`` among the messages is one
that is never received, and an event may have arguments, like ``pay(20)``.

A block that begins with ``ticks`` gives choices with their ticks; messages and markers arrive after
their delays, 1 tick by default: ``delays 3 1`` gives them in the order of sending, ``B>C takes 5``
and ``marker P1->P2 takes 5`` that of one. ``awaited`` lists what each process waits for. Outside of
ticks no time passes: ``expire`` jumps to the next deadline.
"""

import re
from dataclasses import dataclass, field
from itertools import groupby, takewhile

import msgspec

from stillframe.errors import StillframeError, UsageError, check_kind
from stillframe.sim import choices
from stillframe.sim.narration import Narrator, unrecorded_news
from stillframe.sim.scripted_process import (
    RULES,
    Script,
    at_line,
    parse_script,
    scripted_topology,
)
from stillframe.sim.timed_run import TICK_MAX, TickAction, TimedRun, together
from stillframe.sim.world import World

SEPARATOR = "----"
FILE_CHARACTER_MAX = 1_000_000
_AT_TICK = re.compile(r"(\d{1,7}) (.+)")
_TAKES = re.compile(r"(marker )?(\S+) takes (\d{1,7})")


class Block(msgspec.Struct, frozen=True):
    """The comment lines before a block, its commands, which begin at `line` of the file, and what
    should happen; None if the block does not say that yet."""

    line: int
    comment: tuple[str, ...]
    commands: tuple[str, ...]
    expected: tuple[str, ...] | None


class Played(msgspec.Struct, frozen=True):
    """A script that was played.

    Attributes:
        happened: for each block of the file, the lines that describe what happened.
        tail: the comment below the last block.
        world: the world at the end.
    """

    blocks: tuple[Block, ...]
    happened: tuple[tuple[str, ...], ...]
    tail: tuple[str, ...]
    world: World
    narrator: Narrator

    @property
    def differing(self) -> tuple[int, ...]:
        """The indices of the blocks whose outcome differs from the expected one."""
        return tuple(
            index
            for index, block in enumerate(self.blocks)
            if block.expected is not None and block.expected != self.happened[index]
        )

    def text(self) -> str:
        """Return the updated file, with the present outcome below the commands of each block."""
        parts = []
        for block, lines in zip(self.blocks, self.happened, strict=True):
            parts.append("\n".join((*block.comment, *block.commands, SEPARATOR, *lines)))
        parts += ["\n".join(self.tail)] if self.tail else []
        return "\n\n".join(parts) + "\n"


def play_text(text: str) -> Played:
    """Play the text of a ``.run`` file. Raises UsageError if it cannot be read, or something in it
    is not possible; the line is named."""
    check_kind("text", text, str, "a string")
    if len(text) > FILE_CHARACTER_MAX:
        raise UsageError(f"a .run file has at most {FILE_CHARACTER_MAX:,} characters")
    blocks, tail = _parse_blocks(text)
    line, word = _commands(blocks[0])[0]
    if word != "system":
        raise UsageError(
            f"line {line}: the first block must begin with 'system', and a line for each process"
        )
    script = parse_script("\n".join(blocks[0].commands[1:]), line + 1)
    world = World(scripted_topology(script), network=script.network, recorder=RULES[script.rules])
    narrator = Narrator(world)
    happened: list[tuple[str, ...]] = [(_system_line(script),)]
    happened += (tuple(_play_block(script, world, narrator, block)) for block in blocks[1:])
    return Played(blocks, tuple(happened), tail, world, narrator)


def _play_block(script: Script, world: World, narrator: Narrator, block: Block) -> list[str]:
    commands = _commands(block)
    line, first = commands[0]
    if first == "ticks":
        plan = _Plan()
        for number, command in commands[1:]:
            with at_line(number):
                _parse_tick_line(plan, number, command)
        return _play_ticks(script, world, narrator, plan, line)
    news = []
    for line, command in commands:
        with at_line(line):
            news += _do(script, world, narrator, command)
    return news


def _do(script: Script, world: World, narrator: Narrator, command: str) -> list[str]:
    if command == "awaited":
        return _awaited(script, world)
    choice = choices.parse_choice(command)
    if isinstance(choice, choices.Deliver):
        _check_together(script, world, choice)
    if isinstance(choice, choices.Expire):
        world.now = max(world.now, world.assembler.next_deadline() or 0.0)
    if isinstance(choice, choices.Initiate):
        world.description.check_process(choice.snapshot.initiator)
    world.take(choice)
    world.sendings.clear()
    return [*unrecorded_news(world, choice), *narrator.news()] or ["nothing happens"]


def _check_together(script: Script, world: World, choice: choices.Deliver) -> None:
    for channel in choice.channels:
        if channel not in world.channels:
            continue
        accepted = together(script, world, channel, choice.position)
        if {*accepted} != {*choice.channels}:
            names = ", ".join(map(str, accepted))
            raise UsageError(
                f"{choice}: the next messages there are accepted in one event: deliver {names}"
            )


def _awaited(script: Script, world: World) -> list[str]:
    lines = []
    for process, events in script.events.items():
        encoded = world.runners[process].capture().encoded
        done = msgspec.msgpack.decode(encoded)["done"]
        if len(done) == len(events):
            lines.append(f"{process} has done all")
            continue
        event = events[len(done)]
        awaited = [f"{a}>{b} from {script.process_of(a)}" for a, b in script.messages if b == event]
        lines.append(
            f"{process} waits for {', '.join(awaited)} to do {event}"
            if awaited
            else f"{process} can do {event}"
        )
    on_the_way = sum(map(len, world.channels.values()))
    return [*lines, f"{on_the_way} messages and markers are on their way"]


@dataclass
class _Plan:
    """The content of a block of ticks.

    `actions` have their ticks, and `lines` their lines; `delays` are in the order of sending;
    `takes` has delays by name, each with its line."""

    actions: list[tuple[int, TickAction]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    delays: list[int] = field(default_factory=list)
    takes: dict[str, tuple[int, int]] = field(default_factory=dict)


def _parse_tick_line(plan: _Plan, line: int, command: str) -> None:
    if command.startswith("delays "):
        plan.delays.extend(_number(word, command) for word in command.split()[1:])
    elif found := _TAKES.fullmatch(command):
        plan.takes[f"{found[1] or ''}{found[2]}"] = (_number(found[3], command), line)
    elif found := _AT_TICK.fullmatch(command):
        choice = choices.parse_choice(found[2])
        if not isinstance(choice, TickAction):
            raise UsageError(
                f"{command!r}: at a tick a process acts or initiates a snapshot; delays "
                "determine when messages arrive"
            )
        plan.actions.append((int(found[1]), choice))
        plan.lines.append(line)
    else:
        raise UsageError(
            f"{command!r}: write 'TICK CHOICE', 'delays N N ...', 'B>F takes N' or "
            "'marker P1->P2 takes N'"
        )


def _play_ticks(
    script: Script, world: World, narrator: Narrator, plan: _Plan, block_line: int
) -> list[str]:
    named = {name: ticks for name, (ticks, _) in plan.takes.items()}
    run = TimedRun(world, plan.actions, plan.delays, script=script, named=named)
    try:
        news = [f"{number:4}  {line}" for number in run.ticks() for line in narrator.news()]
    except StillframeError:
        with at_line(block_line if run.cause is None else plan.lines[run.cause]):
            raise
    for name, (ticks, line) in plan.takes.items():
        if name in run.unmet:
            with at_line(line):
                raise UsageError(
                    f"'{name} takes {ticks}': nothing of that name was sent in this block that can "
                    "arrive"
                )
    return news


def _number(word: str, command: str) -> int:
    if not word.isascii() or not word.isdigit() or len(word) > 7 or int(word) > TICK_MAX:
        raise UsageError(f"{command!r}: {word!r} is not a number of ticks: give 0 to {TICK_MAX:,}")
    return int(word)


def _system_line(script: Script) -> str:
    counts = (
        (len(script.events), "process", "es"),
        (len(script.channels), "channel", "s"),
        (len(script.messages), "message", "s"),
    )
    return ", ".join(f"{count} {one}{'' if count == 1 else more}" for count, one, more in counts)


def _commands(block: Block) -> list[tuple[int, str]]:
    numbered = enumerate(map(str.strip, block.commands), block.line)
    return [(line, command) for line, command in numbered if not command.startswith("#")]


def _parse_blocks(text: str) -> tuple[tuple[Block, ...], tuple[str, ...]]:
    """Split a file into its blocks and the comment below them: an empty line ends a block."""
    lines = [line.rstrip() for line in text.split("\n")]
    for number, line in enumerate(lines, 1):
        if hidden := next((c for c in line if not c.isprintable() and c != "\t"), None):
            raise UsageError(f"line {number}: {hidden!r} cannot be in a .run file: remove it")
    blocks: list[Block] = []
    comment: list[str] = []
    for is_text, numbered in groupby(enumerate(lines, 1), lambda pair: bool(pair[1])):
        if not is_text:
            comment += [""] if comment and comment[-1] else []
            continue
        numbers, paragraph = zip(*numbered, strict=True)
        above = list(takewhile(lambda line: line.lstrip().startswith("#"), paragraph))
        comment += above
        begin, block = len(above), paragraph[len(above) :]
        if not block:
            continue
        if block[0] == SEPARATOR:
            raise UsageError(
                f"line {numbers[begin]}: there is no command above '{SEPARATOR}': write at least "
                "one"
            )
        commands = tuple(takewhile(lambda line: line != SEPARATOR, block))
        is_known = len(commands) < len(block)
        expected = block[len(commands) + 1 :] if is_known else None
        blocks.append(Block(numbers[begin], tuple(comment), commands, expected))
        comment = []
    if not blocks:
        raise UsageError("the file is empty: begin with a block 'system'")
    return tuple(blocks), tuple(comment if not comment or comment[-1] else comment[:-1])
