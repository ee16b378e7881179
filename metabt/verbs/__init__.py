"""What `metabt` can do, a file for each stage of the experiment."""
