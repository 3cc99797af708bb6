"""What is shown to a person who watches: the streams of all gateways."""
