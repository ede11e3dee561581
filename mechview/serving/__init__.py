"""A local page to type a prompt and see the model's heads, stream and lens on it: `mechview serve MODEL`.

`live` keeps one model and makes the page of a prompt, `app` says who may ask for it. The server listens on the loopback
interface alone and there is no option to change that: to look at a model on another machine, forward the port.
"""
