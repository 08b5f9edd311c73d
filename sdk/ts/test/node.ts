import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import * as net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** A real node as a process of its own, on a directory that outlives it. */
export class Node {
  url = "";
  private child: ChildProcess | undefined;
  private readonly data = mkdtempSync(join(tmpdir(), "pulse-ts-"));

  static async start(): Promise<Node> {
    const node = new Node();
    await node.start("127.0.0.1:0");
    return node;
  }

  get port(): number {
    return Number(new URL(this.url).port);
  }

  private async start(http: string): Promise<void> {
    const binary = process.env["PULSE_BIN"];
    if (binary === undefined) throw new Error("set PULSE_BIN to the pulse binary, or run make sdk-ts at the root of the repository");
    const child = spawn(binary, ["dev", "--http", http, "--data", this.data, "-o", "jsonl", "--log-level", "error"], { stdio: ["ignore", "pipe", "inherit"] });
    this.child = child;
    const lines = createInterface({ input: child.stdout! });
    const first = await Promise.race([once(lines, "line"), once(child, "exit").then(() => undefined)]);
    if (first === undefined) throw new Error("pulse dev ended before it was ready");
    this.url = (JSON.parse(first[0] as string) as { url: string }).url;
  }

  /** Kills it where it stands. */
  async kill(): Promise<void> {
    const gone = once(this.child!, "exit");
    this.child!.kill("SIGKILL");
    await gone;
  }

  /** Starts it again with the same data and address. */
  restart(): Promise<void> {
    return this.start(new URL(this.url).host);
  }

  async stop(): Promise<void> {
    await this.kill();
    rmSync(this.data, { recursive: true, force: true });
  }
}

/** A wire between worker and node that can be made to fail. */
export class Wire {
  url = "";
  /** How many connections there have been. */
  connections = 0;
  private readonly server = net.createServer((client) => this.connect(client));
  private readonly sockets = new Set<net.Socket>();
  private muteAfter: string | undefined;
  private down = false;

  private constructor(private readonly port: number) {}

  static async to(node: Node, host = "127.0.0.1", port = 0): Promise<Wire> {
    const wire = new Wire(node.port);
    wire.server.listen(port, host);
    await once(wire.server, "listening");
    wire.url = `http://${host}:${(wire.server.address() as net.AddressInfo).port}`;
    return wire;
  }

  /** From the next chunk with this text on, that connection brings nothing more to the worker; "" is any. Later ones are whole. */
  muteOnce(after: string): void {
    this.muteAfter = after;
  }

  /** Cuts all connections, and takes none until up. */
  cut(): void {
    this.down = true;
    for (const socket of this.sockets) socket.destroy();
  }

  up(): void {
    this.down = false;
  }

  close(): void {
    this.cut();
    this.server.close();
  }

  private connect(client: net.Socket): void {
    if (this.down) return void client.destroy();
    this.connections++;
    const upstream = net.connect(this.port, "127.0.0.1");
    let mute = false;
    for (const socket of [client, upstream]) {
      this.sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        this.sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.on("data", (part) => upstream.write(part));
    upstream.on("data", (part) => {
      if (mute) return;
      client.write(part);
      if (this.muteAfter !== undefined && part.includes(this.muteAfter)) {
        mute = true;
        this.muteAfter = undefined;
      }
    });
  }
}
