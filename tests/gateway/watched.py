"""A runtime to look at: a tree of shared prompts and requests that grow with every look."""

from __future__ import annotations

from branchline.errors import RuntimeUnavailable
from branchline.protocol import Inspection
from branchline.runtime_info import Histogram, RequestView, RuntimeInfo, TreeNode

BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.5, 1.0)
EVIL = "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>"


class Watched:
    """A `Source`. Each look is a second of its time; 20 requests run in 4 conversations."""

    def __init__(self) -> None:
        self.looks = 0
        self.away: str | None = None  # why it does not answer
        self.evil = True  # whether what users wrote tries to be markup

    async def info(self) -> RuntimeInfo:
        if self.away is not None:
            raise RuntimeUnavailable(self.away)
        looks = self.looks
        nodes = self._nodes()
        cached = sum(node.length for node in nodes)
        return RuntimeInfo(
            model="toy",
            uptime=100.0 + looks,
            running=20,
            waiting=2,
            pages_total=10_000,
            pages_free=9_500 - cached,
            pages_cached=cached,
            pages_private=500,
            pages_protected=cached // 2,
            prompt_tokens=4_000 * looks,
            cached_prompt_tokens=3_000 * looks,
            computed_prompt_tokens=1_000 * looks,
            generated_tokens=250 * looks,
            requests_finished=10 * looks,
            requests_aborted=3,
            retractions=4,
            evicted_pages=5,
            steps=50 * looks,
            tokens_per_second=250.0,
            positions_attended=900,
            positions_read=300,
            step_seconds={"plan": 0.5, "wait": 1.5},
            forced_tokens=60 * looks,
            recalled_tokens=7,
            requests_timed_out=1,
            requests_good=9 * looks,
            target_ttft=0.5,
            target_tpot=0.05,
            histograms={
                "queue": Histogram(BOUNDS, (0, 0, 0, 0, 0, 0, looks), 2.5 * looks),
                "ttft": Histogram(BOUNDS, (0, 0, 0, 10 * looks, 0, 0, 0), 0.8 * looks),
                "tpot": Histogram(BOUNDS, (0, 10 * looks, 0, 0, 0, 0, 0), 0.15 * looks),
                "e2e": Histogram(BOUNDS, (0, 0, 0, 0, 0, 10 * looks, 0), 9.0 * looks),
            },
        )

    async def inspect(self, nodes: int) -> Inspection:
        info = await self.info()
        self.looks += 1
        shown = tuple(self._nodes()[:nodes])
        return Inspection("0", shown, len(shown) + 3, tuple(self._requests()), info)

    def _nodes(self) -> list[TreeNode]:
        """Four conversations of 5 answers each, below one instruction; and one that nobody uses."""
        per_answer, shared = 10 + self.looks, 300
        per_chat = 100 + 5 * per_answer
        said = EVIL if self.evil else "Translate this."
        nodes = [_node(0, -1, 0, shared, shared + 4 * per_chat, 20, "Be brief.\nYou are a tutor.")]
        for chat in range(1, 5):
            nodes.append(_node(chat, 0, shared, 100, per_chat, 5, said))
            nodes += [
                _node(10 * chat + i, chat, shared + 100, per_answer, per_answer, 1, f"Answer {i}")
                for i in range(5)
            ]
        old = TreeNode(99, -1, 0, 200, 200, 0, idle=0.95, text="An old one.", salted=True)
        return [*nodes, old]

    def _requests(self) -> list[RequestView]:
        out = self.looks + 10
        running = [
            RequestView(
                str(i),
                i % 2,
                "running",
                400,
                390,
                out,
                900,
                4.5,
                "tutor",
                10 + 10 * (i // 5) + i % 5,
            )
            for i in range(20)
        ]
        waiting = [
            RequestView(f"w{i}", 0, "waiting", 800, 0, 0, 128, 0.2, EVIL, None, priority=i)
            for i in range(2)
        ]
        return running + waiting


def _held(request: int) -> int:
    """The node that a running request holds: an answer of its own."""
    return 10 * (request // 5 + 1) + request % 5


def _node(
    id: int, parent: int, start: int, length: int, subtree: int, users: int, text: str
) -> TreeNode:
    return TreeNode(id, parent, start, length, subtree, users, idle=0.0, text=text, salted=False)
