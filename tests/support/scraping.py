"""Asking a process for its numbers and its health, and reading the answers."""

import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from support.waiting import eventually


def get(address, path="/metrics", seconds=60):
    """Return status and text of an answer."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scrape(address):
    """Return values by name and labels: `scrape(…)["harvest_leader", ("0",)]`; labels in order of their names."""
    status, text = get(address)
    assert status == 200, text
    return parsed(text)


def parsed(text):
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def series(found, name):
    """Return the values of one metric by labels."""
    return {labels: value for (each, labels), value in found.items() if each == name}


def scrape_until(address, condition, message, seconds=60):
    """Return the first scrape that meets a condition."""

    def met():
        found = scrape(address)
        return found if condition(found) else None

    return eventually(met, message, seconds=seconds)
