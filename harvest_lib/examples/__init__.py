"""Consumers that run, to be read and copied: `python -m harvest_lib.examples.<name> --help`.

flight_counts    counts messages by key, in a table and as messages
order_totals     adds up orders by customer, in a table
bank_transfer    makes a debit and a credit of each transfer
"""
