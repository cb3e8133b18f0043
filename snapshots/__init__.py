"""What a snapshot is: records as columns, the safe reader, the writer, the timeline."""
