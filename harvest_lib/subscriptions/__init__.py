"""What people do to subscriptions: list, rewind, reshard, move and remove them, and see how far behind they are."""
