"""Rows for tests of the parts that move them."""

from harvest_lib.record import Row, row_bytes
from harvest_lib.record.rows import RowPage, RowsSummary, sampled_traceparents

"""The message in a delivery report."""


def row(record_id: int, key: str, value: str | None = "v", topic: str = "t") -> Row:
    return (record_id, topic, key, value, [], [])


class Page(RowPage):
    """A page of rows that are there; `made` has those that were read."""

    def __init__(self, rows, made=None):
        self._rows = list(rows)
        self.made = made if made is not None else []

    def __len__(self):
        return len(self._rows)

    def __getitem__(self, place):
        if isinstance(place, slice):
            return Page(self._rows[place], self.made)
        self.made.append(self._rows[place])
        return self._rows[place]

    def __iter__(self):
        self.made += self._rows
        return iter(self._rows)

    @property
    def ids(self):
        return [each[0] for each in self._rows]

    @property
    def keys(self):
        return [each[2] for each in self._rows]

    @property
    def topics(self):
        return [each[1] for each in self._rows]

    def pick(self, places):
        return Page([self._rows[place] for place in places], self.made)

    @property
    def summary(self):
        sizes = [row_bytes(each) for each in self._rows]
        topics = {each[1] for each in self._rows}
        return RowsSummary(bytes=sum(sizes), largest=max(sizes, default=0), is_plain=True, topics=topics)

    def sampled_traceparents(self, most):
        return sampled_traceparents(self._rows, most)
