import json
import subprocess
import sys

COUNTS = """
from bench.peers.common import Channel, serve

class Counts:
    def play(self, round):
        print(f"round {round}")
        return round

serve(Channel(), Counts())
"""


def test_a_turn_of_several_rounds_is_answered_once() -> None:
    requests = [{"do": "play", "first": 1, "last": 1}, {"do": "play", "first": 2, "last": 4}, {"do": "stop"}]
    done = subprocess.run(
        (sys.executable, "-c", COUNTS),
        input="\n".join(map(json.dumps, requests)),
        capture_output=True,
        text=True,
        check=True,
    )
    ready, first, turn = map(json.loads, done.stdout.splitlines())
    assert ready == {"ready": True}
    assert (first["steps"], turn["steps"]) == (1, 2 + 3 + 4)
    # What a contender prints is no answer.
    assert done.stderr.split("\n")[:4] == ["round 1", "round 2", "round 3", "round 4"]
