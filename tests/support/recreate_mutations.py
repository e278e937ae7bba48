"""Histories in which a topic is deleted and recreated, broken in one way each. See `history_mutations`."""

from dataclasses import replace

from support.history_mutations import at, polled

from infra.chaos.history.events import Assign, Poll, RecreatedTopic, Write


def forget_the_recreation(events, dice):
    """Let offsets begin again, and nobody say why."""
    before, after = {}, {}
    for event, shown in (
        ((events[: at(events, RecreatedTopic)[0]], before), (events, after)) if at(events, RecreatedTopic) else ()
    ):
        shown.update(((r.partition, r.offset), r) for each in event if isinstance(each, Poll) for r in each.records)
    if all(after[place] == record for place, record in before.items()):
        return None
    return {"inconsistent-offsets"}, [event for event in events if not isinstance(event, RecreatedTopic)]


def stay_in_the_old_topic(events, dice):
    """Let a reader go on as if it were not another topic."""
    found = []
    for before, made in zip([0, *at(events, RecreatedTopic)], at(events, RecreatedTopic), strict=False):
        read = {r.partition: r.offset for e in events[before:made] if isinstance(e, Poll) for r in e.records}
        rest = events[made + 2 :]
        ends = next((i for i, e in enumerate(rest) if isinstance(e, Assign | RecreatedTopic)), len(rest))
        new = [record for e in rest[:ends] if isinstance(e, Poll) for record in e.records]
        if any(record.offset <= read.get(record.partition, -1) for record in new):
            found.append(made + 1)
    if not found:
        return None
    gone = dice.choice(found)
    return {"nonmonotonic-poll", "inconsistent-offsets"}, [e for index, e in enumerate(events) if index != gone]


def lose_before_the_deletion(events, dice):
    """Say that a record went with the topic that was answered long before, and that nobody has read."""
    if not at(events, RecreatedTopic):
        return None
    made = at(events, RecreatedTopic)[0]
    writes = [e for e in events if isinstance(e, Write) and e.type == "ok" and e.time < events[made].since]
    answered = {record.event for write in writes for record in write.records}
    later = {r.event for e in events[made:] if isinstance(e, Poll) for r in e.records}
    if not (names := sorted(answered - later)):
        return None
    lost = dice.choice(names)
    events = polled(events, lambda record: None if record.event == lost else record)
    events[made] = replace(events[made], events=(*events[made].events, lost))
    return {"lost-write"}, events


def lose_after_the_deletion(events, dice):
    """Lose a record that was acknowledged in the topic as it was recreated."""
    if not at(events, RecreatedTopic):
        return None
    made = at(events, RecreatedTopic)[-1]
    named = {name for index in at(events, RecreatedTopic) for name in events[index].events}
    before = {r.event for e in events[:made] if isinstance(e, Poll) for r in e.records}
    names = {r.event for e in events[made:] if isinstance(e, Poll) for r in e.records} - named - before
    if not names:
        return None
    lost = dice.choice(sorted(names))
    return {"lost-write"}, polled(events, lambda record: None if record.event == lost else record)


RECREATES = (forget_the_recreation, stay_in_the_old_topic, lose_before_the_deletion, lose_after_the_deletion)
