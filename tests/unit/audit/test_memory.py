"""An audit's memory does not grow with what it audits."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gate

# In a process of its own, for the peak of a process never falls. Every fourth record is a copy by another term.
PROGRAM = """
import json, sys, time
from harvest_lib.audit import CommittedRecord, ObservedRecord, audit

count = int(sys.argv[1])
leaders = [bytes([term]) * 16 for term in range(4)]

def key(number):
    return b"N%05d" % (number * 7919 % 10_000)

def committed():
    return (CommittedRecord(number, key(number)) for number in range(count))

def observed():
    for number in range(count):
        for copy in range(2 if number % 4 == 0 else 1):
            partition = number * 7919 % 10_000 % 8
            yield ObservedRecord("flights", partition, 2 * number + copy, number, key(number), number, leaders[copy])

def peak_bytes():  # getrusage's would be that of the process we come from
    status = open("/proc/self/status").read()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

before, began = peak_bytes(), time.monotonic()
report = audit(committed(), observed())
print(json.dumps({
    "grown_bytes": peak_bytes() - before, "peak_bytes": peak_bytes(), "seconds": time.monotonic() - began,
    "ok": report.ok, "delivered": report.delivered, "adjacent": report.adjacent_duplicates,
}))
"""


def measure(count):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(count)], check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    print(f"{count} committed: {figures}")  # noqa: T201  (shown with -s)
    assert (figures["ok"], figures["delivered"], figures["adjacent"]) == (True, count, count // 4)
    return figures


@pytest.mark.full
def test_300_000_records_take_no_more_than_the_page_caches():
    assert measure(240_000)["grown_bytes"] < 96 * 2**20


@pytest.mark.long
@pytest.mark.timeout(900)
def test_5_000_000_records_fit_in_300_mb():
    assert measure(5_000_000)["peak_bytes"] < 300 * 2**20
