"""Changes of code: at the line of the diagnosis, and nothing else in the file."""

import ast

import pytest
from oomdoc.remedies.code import CHANGES, change
from oomdoc.remedies.interface import NotApplicable

SCRIPT = '''\
import torch as th
model = Net().cuda()  # big
teacher = Teacher().to("cuda", non_blocking=True)
state = th.load("a.pt")  # here
prepare()
for x in loader:
    loss = criterion(model(x))
    loss += 0.1 * penalty
    loss.backward()
    history.append({"loss": loss, "n": 1})
    total = total + loss
    self.last = loss
    print(loss)

# the validation
for x in validation:
    y = model(x)


def evaluate(m):
    """Says how good it is."""
    return [m(x) for x in validation]


y = teacher(x)
'''


def _line(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("remedy", "at", "edits"),
    [
        (
            "detach-retained-graph",
            "loss = criterion",
            [
                ('{"loss": loss, "n": 1}', '{"loss": loss.detach(), "n": 1}'),
                ("total = total + loss\n", "total = total + loss.detach()\n"),
                ("self.last = loss\n", "self.last = loss.detach()\n"),
            ],
        ),
        ("no-grad-evaluation", "    y = model", [
            ("for x in validation:\n    y = ", "with th.no_grad():\n    for x in validation:\n        y = ")
        ]),
        ("no-grad-evaluation", "return [m(x)", [("def evaluate", "@th.no_grad()\ndef evaluate")]),
        ("map-location", "th.load", [('th.load("a.pt")', 'th.load("a.pt", map_location="cpu")')]),
        ("move-when-used", "teacher = Teacher", [
            ('Teacher().to("cuda", non_blocking=True)', "Teacher()"),
            ("\n\n\ny = teacher(x)", '\nteacher = teacher.to("cuda", non_blocking=True)\n\n\ny = teacher(x)'),
        ]),
        ("move-when-used", "model = Net", [
            ("Net().cuda()", "Net()"), ("prepare()\n", "prepare()\nmodel = model.cuda()\n")
        ]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_change_is_made_where_it_belongs(remedy: str, at: str, edits: list[tuple[str, str]], newline: str) -> None:
    expected = SCRIPT
    for old, new in edits:
        assert expected.count(old) == 1
        expected = expected.replace(old, new)
    made = change(remedy, SCRIPT.replace("\n", newline), _line(at))
    assert isinstance(made, str)
    plain = made.replace("\r\n", "\n")
    assert ast.dump(ast.parse(plain)) == ast.dump(ast.parse(expected))
    kept = [line for line in SCRIPT.splitlines() if line in expected.splitlines()]
    assert [line for line in plain.splitlines() if line in kept] == kept


@pytest.mark.parametrize(
    ("remedy", "text", "line", "reason"),
    [
        ("detach-retained-graph", "loss = f()\nloss.backward()\n", 1, "no statement of that block stores loss"),
        ("detach-retained-graph", "a = f()\ntotal += a\ntotal.backward()\n", 1, "no statement"),
        ("no-grad-evaluation", "y = model(x)\n", 1, "does not import torch"),
        ("no-grad-evaluation", "import torch\nclass M:\n    def forward(self, x):\n        return x\n", 4, "forward"),
        ("map-location", "import torch\ns = torch.load(p, map_location=d)\n", 2, "given already"),
        ("move-when-used", "m = Net().cuda()\nm(x)\n", 1, "used at once"),
        ("move-when-used", "x = 1\n", 1, "no statement there moves"),
        ("smaller-batch", "x = 1\n", 1, "no change of code"),
        ("map-location", "x = (\n", 1, "not Python"),
    ],
)
def test_what_cannot_be_written_says_why(remedy: str, text: str, line: int, reason: str) -> None:
    found = change(remedy, text, line)
    assert isinstance(found, NotApplicable)
    assert reason in found.reason


@pytest.mark.parametrize("remedy", list(CHANGES))
def test_a_line_that_is_not_there_is_no_fault(remedy: str) -> None:
    assert isinstance(change(remedy, "import torch\n", 99), NotApplicable)
