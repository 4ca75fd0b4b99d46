"""Which regressor is chosen, and how far its answers may be trusted. Pure: arrays in, records out."""
