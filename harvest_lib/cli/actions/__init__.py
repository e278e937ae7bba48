"""What the commands do. A command imports its module when it runs, so these modules may import anything."""
